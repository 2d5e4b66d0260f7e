"""Recipe (TOML) → plan → run, skip, resume."""
