"""Record batches: views over bytes, builder, control records, compression."""
