"""Databases that SQLAlchemy reaches, for sinks and spouts alike."""
