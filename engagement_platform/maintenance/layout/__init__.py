"""How the files of a Delta table lie: measured from its log, judged, and what mending would gain. Writes nothing."""
