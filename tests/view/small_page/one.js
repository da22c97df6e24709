const text = "</script><!--";
