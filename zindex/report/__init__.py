"""What people read about runs: tables and the same facts as JSON. Nothing is computed here."""
