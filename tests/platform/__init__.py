# noqa: A005 -- below tests, nobody takes it for the standard library's
