"""Every formula that touches epsilon, and every draw of randomness, lives in this package."""
