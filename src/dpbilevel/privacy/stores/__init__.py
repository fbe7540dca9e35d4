"""Where ledgers keep their entries: in memory, or in a database that many processes share."""
