"""Who is at the other end: operators, tokens, sign-in, TLS and sockets. Imports forms and `runbooks.people`. Start at
`identity`."""
