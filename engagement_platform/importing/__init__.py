"""Old stores into Delta tables, without Spark: files of several formats, slice by slice, resumable and verified."""
