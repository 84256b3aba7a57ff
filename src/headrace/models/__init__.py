"""Models on disk: names and where they lie, specs by family, weights as stored, tokenizers and chat templates."""
