"""What keeps the tables of a lake in order: layout, rules, restores, verification, imports of old stores."""
