"""The places where locks can live."""
