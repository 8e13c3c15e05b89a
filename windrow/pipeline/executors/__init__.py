"""Where a job runs: one small seam, and what stands behind it."""
