"""Building of pronunciation lexicons: espeak-ng, pinyin, tables, and letter-to-sound rules learned from them."""
