"""What the events of games say about them: figures by minute, what is expected of them, players' features.

Arrow and numpy, no Spark: a minute of figures is judged when it is over, and a player is looked up within an offer.
"""
