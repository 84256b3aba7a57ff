"""Operations on stacks and change sets."""
