"""The gateway of endpoints: chooses a replica for each request and relays it between client and worker."""
