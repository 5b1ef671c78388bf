"""Access control entries and SCRAM credentials: their records, their place in the image, and what changes them."""
