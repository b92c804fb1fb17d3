"""Which source of a mixture is read next: percents, their changes, and exact orders of picks."""
