"""What datasets of conversations are made of: records of files, their layouts, packed rows."""
