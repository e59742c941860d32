"""Everything one machine needs to run the platform alone: broker, Spark Connect server, sample traffic, and `up`.

Production code never imports from here.
"""
