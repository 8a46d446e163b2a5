"""Who may do what: API keys, scopes of routes, hosts and origins, TLS. Frontend process; used by `app` and `server`."""
