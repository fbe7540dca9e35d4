"""Storage of ledger entries: in memory, or in a database shared by many processes."""
