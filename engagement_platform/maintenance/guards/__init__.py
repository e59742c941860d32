"""The rules that keep streams and tables safe: where each comes from, what holds it, and whether it is kept now."""
