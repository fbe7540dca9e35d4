"""The paper's theorems with explicit constants."""
