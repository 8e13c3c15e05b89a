"""A local S3 server behind a proxy that adds latency and limits bandwidth."""
