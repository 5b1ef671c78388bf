"""Input from strangers: fuzzing of everything that reads bytes which somebody else wrote."""
