"""`composer_replication.ingestion`, a module path of the guide; compat/names.py says what it
holds."""

from composer_replication.compat.names import module_getattr, names_of

__all__ = names_of(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = module_getattr(__name__)
