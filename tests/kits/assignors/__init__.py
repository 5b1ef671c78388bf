"""Groups to be assigned: drawn by Hypothesis, and what must hold of any assignment."""
