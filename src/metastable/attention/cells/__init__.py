from .engine import Cells

__all__ = ["Cells"]
