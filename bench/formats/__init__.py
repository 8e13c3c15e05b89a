"""Each format's epoch beside what the library behind it reads alone, on the same cores."""
