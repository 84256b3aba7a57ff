import os

import s3fs
from common import expect, step

files = s3fs.S3FileSystem()
with step("mkdir, open, ls, rm"):
    files.mkdir("by-s3fs")
    content = os.urandom(6 * 2**20)  # more than one part
    with files.open("by-s3fs/folder/file", "wb") as sent:
        sent.write(content)
    expect(files.ls("by-s3fs/folder") == ["by-s3fs/folder/file"], "the file")
    with files.open("by-s3fs/folder/file", "rb") as received:
        expect(received.read() == content, "the same bytes")
    files.rm("by-s3fs", recursive=True)
    expect(not files.exists("by-s3fs"), "no bucket")
