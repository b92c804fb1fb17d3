"""Megatron Core's older names for what is in ``object_storage_utils``."""

from zindex.datasets.object_storage_utils import S3Client
from zindex.io.remote_files import S3_PREFIX

__all__ = ["S3_PREFIX", "S3Client"]
