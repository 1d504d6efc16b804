"""Write every generated page and drawing."""

from docs.generate.pages import GENERATED

for path, make in GENERATED.items():
    path.write_text(make(), encoding="utf-8")
    print(f"wrote {path}")
