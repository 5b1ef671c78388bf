"""What a partition knows about its producers, and the files that keep it."""
