"""The door of endpoints: chooses a replica for each request and streams bytes between the client and its worker."""
