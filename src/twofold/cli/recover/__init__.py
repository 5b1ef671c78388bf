"""`twofold recover`: end what a database has decided."""
