# noqa: A005 -- inside tests, it is not mistaken for the standard library's
