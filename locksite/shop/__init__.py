"""A ticket shop whose seats must not be oversold."""
