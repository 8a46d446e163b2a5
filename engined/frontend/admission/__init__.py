"""Which requests are taken in: the bounded queue, and what each API key may use. Frontend process; used by `app`."""
