"""Old stores into Delta tables: files of several formats, read and written by Spark, slice by slice, and verified."""
