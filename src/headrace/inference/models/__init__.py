"""Models on disk: names and locations, specs by family, stored weights, tokenizers and chat templates."""
