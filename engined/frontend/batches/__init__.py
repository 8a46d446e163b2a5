"""Uploaded files and batches: kept on disk, computed behind everything else, resumed after a restart."""
