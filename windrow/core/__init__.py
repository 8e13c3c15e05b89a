"""What every room needs: errors, the interface of sources, buffers, encodings, machine limits, user functions."""
