"""``python -m bench peers``: windrow and every rival in one run, and whether the bars were held."""
