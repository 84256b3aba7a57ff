"""The dialect of Text Embeddings Inference (TEI)."""
