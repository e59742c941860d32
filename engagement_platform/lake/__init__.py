"""The platform's tables: one contract each, and the only code that writes them."""
