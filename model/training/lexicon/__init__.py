"""Building the pronunciation lexicons: espeak-ng, pinyin, and the letter-to-sound rules learned from both."""
