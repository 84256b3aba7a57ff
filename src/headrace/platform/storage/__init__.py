"""Object storage of a platform: an S3 proxy on its port, SeaweedFS behind it, and signed URLs for workers."""
