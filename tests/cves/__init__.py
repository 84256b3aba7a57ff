"""Public vulnerabilities of this field, each with a file or request made here, and what Headrace answers."""

from tests.cves import connections, documents, model_files, requests
from tests.cves.attack import Attack

ATTACKS: tuple[Attack, ...] = (*model_files.ATTACKS, *documents.ATTACKS, *requests.ATTACKS, *connections.ATTACKS)
